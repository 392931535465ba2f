"""Plans as the arguments and files of training frameworks, and back."""
