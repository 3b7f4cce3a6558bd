"""The rewards that score episodes, and the modules that these rewards share."""
