"""Show events and states to people and programs. Each module turns records into one medium."""
