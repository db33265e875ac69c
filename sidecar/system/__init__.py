"""Touch files, time, addresses and terminals safely, in the same way in every process."""
