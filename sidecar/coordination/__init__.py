"""How daemons agree through shared storage: one primitive, create-if-absent."""
