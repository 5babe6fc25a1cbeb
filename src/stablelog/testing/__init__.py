"""The test tools of stablelog. Users of stablelog can use them in their own tests."""
