"""Benches of Viewtide against its peers: `python -m bench --help`. Not part of the distribution."""
