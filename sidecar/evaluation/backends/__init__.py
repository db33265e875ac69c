"""The frameworks that can evaluate, one package each; a worker process imports exactly one of them."""
