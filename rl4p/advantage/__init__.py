"""The advantage phase, which turns rewards into one number per response token."""
