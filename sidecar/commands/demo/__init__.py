"""The example that `sidecar demo` runs: a small training job on real digits, and a daemon beside each of its processes.

`digits.py` (the task) and `train.py` (the training job) are written to be read and copied; only they import
frameworks, in processes of their own. `folder` prepares the directory, `children` and `job` start the processes,
`screen` shows the run, and `run` puts these steps in order.
"""
