"""Every client that the gateway is for, in every case that breaks gateways."""
