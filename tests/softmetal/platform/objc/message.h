// The entry points of messages, as Apple declares them; libsoftmetal has them (objects/send.S).
#pragma once

extern "C" {
void objc_msgSend(void);
void objc_msgSend_stret(void);
void objc_msgSend_fpret(void);
}
