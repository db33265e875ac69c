"""A task file without a task in it."""

TASK = "accuracy"


def task():
    return {"model": "a dictionary is no task"}
