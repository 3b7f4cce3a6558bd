"""Harbor: its task folders under our runner, our sandboxes and tasks under its runner.

Harbor itself is needed only for the latter, and imported only there.
"""
