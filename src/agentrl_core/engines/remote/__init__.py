"""Engine in front of model servers."""
