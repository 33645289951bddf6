"""The suite that bench/run.sh runs."""
