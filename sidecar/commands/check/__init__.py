"""`sidecar check`: `command` tries on this node what a daemon needs, `peers` looks at the other nodes."""
