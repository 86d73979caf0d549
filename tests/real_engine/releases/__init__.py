"""What sparkwright says of each release of vLLM, compared with that release itself."""
