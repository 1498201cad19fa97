// What has changed is put in its place; what has not stays as it is, with focus, selection and scroll.
(() => {
  const LOST = "tokenwire watch has ended, or cannot be reached";

  /** The node to renew: the one with this id, or the next one, if it is of this kind and has no id. */
  function known(place, wanted) {
    if (!wanted.id) return place && !place.id && place.nodeName === wanted.nodeName ? place : null;
    let found = place;
    while (found && found.id !== wanted.id) found = found.nextSibling;
    return found;
  }

  function renew(old, fresh) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    let place = old.firstChild;
    const removeUntil = (end) => {
      while (place && place !== end) [place, ] = [place.nextSibling, place.remove()];
    };
    for (const wanted of fresh.childNodes) {
      const found = known(place, wanted);
      if (!found) {
        old.insertBefore(document.importNode(wanted, true), place);
        continue;
      }
      removeUntil(found);
      renew(found, wanted);
      place = found.nextSibling;
    }
    removeUntil(null);
  }

  setInterval(async () => {
    try {
      const answer = await fetch("");
      if (!answer.ok) throw new Error(answer.statusText);
      const next = new DOMParser().parseFromString(await answer.text(), "text/html");
      document.title = next.title;
      renew(document.querySelector("main"), next.querySelector("main"));
    } catch {
      document.getElementById("lost").textContent = LOST;
    }
  }, 1000 * Number(document.documentElement.dataset.refresh));
})();
