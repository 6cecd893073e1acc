"""What the sample images' programs do as far as a GPU is concerned, without one."""
