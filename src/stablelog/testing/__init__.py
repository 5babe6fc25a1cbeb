"""The test tools of stablelog, for the tests of its users, too."""
