"""What a kernel of a GPU is launched with: blocks and threads, shared memory, boxes of tensors, fragments."""
