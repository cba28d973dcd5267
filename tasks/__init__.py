"""One room for each verb of a release."""
