"""From chats to tokens: encoding, loss masks, scores and the rows of a training batch."""
