"""What sparkwright says of each release of vLLM, held against that release itself."""
