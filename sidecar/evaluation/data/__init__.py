"""Read eval sets as exact streams of batches, and divide the batches among the ranks."""
