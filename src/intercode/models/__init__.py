"""Language models: one contract, a client for each protocol, and what stands around a call."""
