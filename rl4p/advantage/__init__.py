"""The advantage phase: rewards to one number per response token."""
