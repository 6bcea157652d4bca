"""Commands about endpoints: calling, serving by programs, and what lives of them."""
