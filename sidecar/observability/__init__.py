"""Show what happened. Each module turns records into one medium."""
