/** What both sides of a grant compute of pages: which bytes it lets a peer write, and their checksums. */
package io.kvmessenger.messenger.pages;
