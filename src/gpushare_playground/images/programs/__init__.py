"""What the sample images' programs do as far as a GPU is concerned, on whatever driver they find."""
