"""The example that `sidecar demo` runs: a small training job on real digits, and a daemon beside each of its processes.

`digits.py` (the task) and `train.py` (the training job) are written to be read and copied; they alone import
frameworks, in processes of their own. The others stage them: `folder` has the place, `children` and `job` have the
processes, `table` and `screen` what one sees, `run` the order of things.
"""
