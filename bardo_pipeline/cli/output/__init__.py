"""Output: tables, pages and plots of the command line."""
