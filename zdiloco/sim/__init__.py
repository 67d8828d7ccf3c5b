"""The virtual world: the production machines in virtual time, on links and processes that fail as they are told to.

Rule: everything that happens is an entry of one agenda and every chance comes from one seed, so the same scenario gives
the same records, byte for byte. No clock, socket, thread or file.
"""
