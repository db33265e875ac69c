"""Define what nodes, daemons and worker processes say to each other: records, states and messages. Imports no I/O."""
