"""The child's side of `programs.Child`: every line of input is a command, every answer one line of JSON."""

import json
import os
import sys


def serve(answer):
    """Answer until there are no more commands; whatever else is printed goes to the log."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        replies.write(json.dumps(answer(**json.loads(line))) + "\n")
        replies.flush()
