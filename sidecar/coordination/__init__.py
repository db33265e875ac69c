"""Let daemons agree through shared storage, by one primitive: create-if-absent."""
