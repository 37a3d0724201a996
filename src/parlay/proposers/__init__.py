"""What fills a draft: one protocol, one signature. Knows neither the controller nor the round."""
