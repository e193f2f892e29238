"""The plugin by which verifiers finds Attune's users: an environment's name there is a top-level module."""

from attune_rl.verifiers import AttuneEnv, AttuneUsers, ChatHarness

__all__ = ["AttuneEnv", "AttuneUsers", "ChatHarness"]
