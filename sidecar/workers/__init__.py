"""The worker processes of this node: started, told what to do, held to their bounds, killed."""
