"""Keep a copy of a run's state directory in a bucket, from which another machine continues the run."""
