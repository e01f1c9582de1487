"""The parts of the gateway's benchmark: what is measured, what measures it, and who it is compared with."""
