"""A program that answers lines, as tests of `sidecar.publishing.sinks.line_process` ask it to."""

import json
import os
import sys
import time

for line in sys.stdin:
    question = json.loads(line)
    if question.get("end"):
        sys.exit(1)
    if question.get("hang"):
        time.sleep(600)
    if question.get("flood"):
        print("x" * 1_000_000, end="", flush=True)
        time.sleep(600)
    read = os.read(question["read"], 100).decode() if "read" in question else None
    answer = {"pid": os.getpid(), "read": read, "given": os.environ.get("GIVEN"), "size": len(line)}
    print(json.dumps(answer), flush=True)
    if question.get("end_afterwards"):
        break
