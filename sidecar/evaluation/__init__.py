"""Worker processes: the disposable half, which imports a framework and evaluates. No other code may do so."""
