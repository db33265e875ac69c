"""Decide which copies stay on disk: pins while they are needed, exports of the best, and the saves of workers."""
