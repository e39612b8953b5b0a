"""The conformance suite: pytest modules by area, and the plugin that judges one implementation."""
