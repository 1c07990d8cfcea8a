"""Update streams: their key, their time and their arrivals."""
