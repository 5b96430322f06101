"""Programs that once failed, each as small as it could be made."""
