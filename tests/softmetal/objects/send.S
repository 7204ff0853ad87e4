// objc_msgSend for GCC's libobjc, which only looks methods up: keeps the registers that hold
// arguments, asks for the method, and jumps there. A message to nil returns 0.
#if defined(__x86_64__)
  .macro LOOK_UP receiver, selector
  pushq %rbp
  movq %rsp, %rbp
  subq $192, %rsp
  movq %rdi, 0(%rsp)
  movq %rsi, 8(%rsp)
  movq %rdx, 16(%rsp)
  movq %rcx, 24(%rsp)
  movq %r8, 32(%rsp)
  movq %r9, 40(%rsp)
  movq %rax, 48(%rsp)
  movups %xmm0, 64(%rsp)
  movups %xmm1, 80(%rsp)
  movups %xmm2, 96(%rsp)
  movups %xmm3, 112(%rsp)
  movups %xmm4, 128(%rsp)
  movups %xmm5, 144(%rsp)
  movups %xmm6, 160(%rsp)
  movups %xmm7, 176(%rsp)
  movq \receiver, %rdi
  movq \selector, %rsi
  call objc_msg_lookup@PLT
  movq %rax, %r11
  movq 0(%rsp), %rdi
  movq 8(%rsp), %rsi
  movq 16(%rsp), %rdx
  movq 24(%rsp), %rcx
  movq 32(%rsp), %r8
  movq 40(%rsp), %r9
  movq 48(%rsp), %rax
  movups 64(%rsp), %xmm0
  movups 80(%rsp), %xmm1
  movups 96(%rsp), %xmm2
  movups 112(%rsp), %xmm3
  movups 128(%rsp), %xmm4
  movups 144(%rsp), %xmm5
  movups 160(%rsp), %xmm6
  movups 176(%rsp), %xmm7
  leave
  jmp *%r11
  .endm
  .text
  .globl objc_msgSend, objc_msgSend_fpret, objc_msgSend_stret
  .type objc_msgSend, @function
  .type objc_msgSend_fpret, @function
  .type objc_msgSend_stret, @function
objc_msgSend:
objc_msgSend_fpret:
  testq %rdi, %rdi
  jz 1f
  LOOK_UP %rdi, %rsi
1:
  xorl %eax, %eax
  xorl %edx, %edx
  pxor %xmm0, %xmm0
  ret
objc_msgSend_stret:
  testq %rsi, %rsi
  jz 2f
  movq %rdx, %r10
  LOOK_UP %rsi, %r10
2:
  movq %rdi, %rax
  ret
#elif defined(__aarch64__)
  .text
  .globl objc_msgSend
  .type objc_msgSend, %function
objc_msgSend:
  cbz x0, 1f
  stp x29, x30, [sp, #-224]!
  mov x29, sp
  stp x0, x1, [sp, #16]
  stp x2, x3, [sp, #32]
  stp x4, x5, [sp, #48]
  stp x6, x7, [sp, #64]
  str x8, [sp, #80]
  stp q0, q1, [sp, #96]
  stp q2, q3, [sp, #128]
  stp q4, q5, [sp, #160]
  stp q6, q7, [sp, #192]
  bl objc_msg_lookup
  mov x16, x0
  ldp x0, x1, [sp, #16]
  ldp x2, x3, [sp, #32]
  ldp x4, x5, [sp, #48]
  ldp x6, x7, [sp, #64]
  ldr x8, [sp, #80]
  ldp q0, q1, [sp, #96]
  ldp q2, q3, [sp, #128]
  ldp q4, q5, [sp, #160]
  ldp q6, q7, [sp, #192]
  ldp x29, x30, [sp], #224
  br x16
1:
  mov x1, #0
  movi d0, #0
  ret
#else
#error "objc_msgSend is written for x86-64 and aarch64"
#endif
  .section .note.GNU-stack, "", %progbits
