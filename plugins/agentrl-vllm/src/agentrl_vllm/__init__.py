"""Engine that samples from vLLM servers, and loads the weights of the policy into them."""
