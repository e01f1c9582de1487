"""Engine that samples from SGLang servers, and loads the weights of the policy into them."""
