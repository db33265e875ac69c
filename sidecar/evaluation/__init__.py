"""The disposable half: processes that import a framework and evaluate. The only code that may do so."""
